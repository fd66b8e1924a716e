"""`toolkit bench scale`: a training on several numbers of nodes, and a report of how it scales."""
