"""Tokens in, tokens out: slots, scheduling, sampling. Knows neither HTTP nor JSON."""
