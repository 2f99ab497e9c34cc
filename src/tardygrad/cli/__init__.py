"""The command line: `commands` declares the commands without torch, and imports the code of the one that is called."""
