"""How well the service takes turns, judged from the caller's ear: `make eval-turns`.

Theory of operation
    `corpus` makes what callers say from a seed, with exact labels: the words by `voices`, everything else by `noises`.
    `examiner` is a caller who lets the service talk and plays one event after another into it, or waits for its answer;
    it leaves an `Observation` of each. `score` turns those into figures, `report` into pages. `run` is the shell.
"""
