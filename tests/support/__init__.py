"""What tests of several rooms share: a provider in its own process, a raw client, a reference parser."""
