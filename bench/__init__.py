"""Figures on this machine, beside llama-server where it is installed. `make bench` prints them."""
