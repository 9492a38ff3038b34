"""What tools/interop/run is made of; `run` and README.md say how it is used."""
