"""The code of the verbs, one file for each group. `tardygrad_command` declares their options and calls them."""
