"""The pre-release gate: settings with their origin, waivers, rule levels, and one decision.

``detdiag check`` reads :mod:`settings`, gathers evidence (:mod:`static` without a model run, else
the same engine as ``detdiag run``) and lets :mod:`judge` turn the report into GO, NO-GO or
INCONCLUSIVE. Nothing here imports torch.
"""
