"""The reproduction of OASiS (INFOCOM 2018)."""
