"""The thin FLARE layer: it carries orders and payloads; no arithmetic of a method stands here."""
