"""Tables and pictures for people; every figure in them comes from a computation or a file, none is typed in."""
