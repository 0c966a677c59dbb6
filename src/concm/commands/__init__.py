"""What users type, by what it is about; each command is thin and imports what it needs when it runs."""
