"""The pipeline: graph, contracts, credit, links, pools, workers, scheduler, engines. May import `media` only."""
