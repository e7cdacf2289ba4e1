"""What the pages show, from objects of the API; pure.

`evidence` reads an AnalysisRun, `accuracy` what is watched after the rollout, `chart` computes the lines of a picture,
`changes` reads who manages which fields,
`table` the rows of a list, `actions` what the viewer may do now. None of them knows HTTP, HTML or a clock.
"""
