"""The code of the commands, one file for each group. `tardygrad_command` declares their options and calls them."""
