"""What several tests share: made-up data, photographs of made-up classes, and the command line as users type it."""
