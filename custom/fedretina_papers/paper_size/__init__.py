"""The papers' tables at the papers' size of network and image, within a budget of minutes, call after call."""
