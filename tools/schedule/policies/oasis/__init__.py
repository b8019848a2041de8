"""OASiS: admission and schedules over future slots, by prices of resources."""
