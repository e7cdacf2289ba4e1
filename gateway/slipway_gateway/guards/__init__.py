"""Guards: what is called before and after the model, and may block or redact what passes.

`texts` finds the texts in bodies, `protocol` writes a call and reads its result, `verdict` joins the results of several
guards, `hold_back` decides which events of a stream a client may have: all pure. `webhook`, `classifier` and `workers`
make calls: to listed hosts, to a ModelDeployment, and to processes that look for patterns. `checks` runs the guards of
a request at once, within places and deadlines, and counts what they decide.
"""
