"""Heads from sums: ridge regression on features of an encoder that does not train, federated in one message."""
