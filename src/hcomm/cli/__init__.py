"""Commands for people: `hcomm …` and `hcomm-check`."""
