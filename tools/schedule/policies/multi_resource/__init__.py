"""The schedulers that OASiS is compared with: fixed counts, DRF, risk and reward, Dorm."""
