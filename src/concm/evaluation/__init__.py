"""Everything that is measured: the protocol, results and their statistics, controls, published figures, conformance."""
