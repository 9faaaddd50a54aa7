"""Commands of `fedretina`, a file each."""
