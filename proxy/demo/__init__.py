"""What demo, tests and benches talk to instead of a paid provider: real sockets, scripted answers."""
