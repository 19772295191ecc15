"""The router: one URL, many models. Decides who waits and which worker runs; never opens a model itself."""
