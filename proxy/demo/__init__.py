"""A scripted provider on real sockets for the demo, tests and benchmarks; and the demo itself."""
