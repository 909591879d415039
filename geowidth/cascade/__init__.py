"""Residual blocks and the gradients that reach them: fan-in, gradient ledger, importance, pruning (CascadeFormer).

blocks        one notion for all of it: the ordered residual blocks of a model, which can be left out and looked into
fan_in        how many gradient paths reach each block, by the formulas of the paper
ledger        gradient norms of every block, summed over a training, in any training loop
trainer_callback   the same in transformers' Trainer
directions    effective rank and mutual cosine of the gradients of microbatches
held_out      losses on held-out text, window by window
importance    what a model loses without each of its blocks, paired over windows
models        CascadeFormer's A, F and AF, and uniform models that match them
model_files   `geowidth cascade models`: files by which these are trained
correlation   Spearman and Pearson with intervals
ledger_and_importance   `geowidth cascade importance`
training      the ledger of `geowidth train --ledger`
scores        the rules by which blocks go first
removal       checkpoints without some of their blocks
curves        losses over blocks removed, by several rules and seeds
stability     how far draws agree on the order of the blocks
pruning       `geowidth prune`
study         `geowidth cascade study`, with study_arms (what is compared), study_design (what it is to be),
              study_cells, study_rates, study_gather, study_record and study_words (what came out)
expected_paths   the fan-in of a model that is trained with interventions

Source: Ahmad, Nam, Yun, "CascadeFormer: Depth-Tapered Transformers Motivated by Gradient Fan-in Asymmetry"
(arXiv 2606.26538).
"""

from typing import TYPE_CHECKING

from geowidth import lazy

if TYPE_CHECKING:  # what type checkers and editors see; at run time each name loads when it is first used
    from geowidth.artifacts.ledger import Ledger as Ledger
    from geowidth.cascade.blocks import ResidualBlocks as ResidualBlocks
    from geowidth.cascade.blocks import residual_blocks as residual_blocks
    from geowidth.cascade.correlation import correlate as correlate
    from geowidth.cascade.directions import gradient_directions as gradient_directions
    from geowidth.cascade.fan_in import predicted_fan_in as predicted_fan_in
    from geowidth.cascade.importance import Importance as Importance
    from geowidth.cascade.importance import block_importance as block_importance
    from geowidth.cascade.ledger import GradientLedger as GradientLedger
    from geowidth.cascade.ledger_and_importance import compare_importance as compare_importance
    from geowidth.cascade.model_files import write_cascade_models as write_cascade_models
    from geowidth.cascade.models import cascade_models as cascade_models
    from geowidth.cascade.models import matched_uniform as matched_uniform
    from geowidth.cascade.pruning import prune as prune
    from geowidth.cascade.scores import RULES as RULES
    from geowidth.cascade.scores import Rule as Rule
    from geowidth.cascade.stability import RankStability as RankStability
    from geowidth.cascade.stability import rank_stability as rank_stability
    from geowidth.cascade.study import run_study as run_study
    from geowidth.cascade.study_arms import ARMS as ARMS
    from geowidth.cascade.study_arms import StudyArm as StudyArm
    from geowidth.cascade.study_design import resolve_study as resolve_study

_HOMES = {
    "Ledger": "geowidth.artifacts.ledger",
    "ResidualBlocks": "geowidth.cascade.blocks",
    "residual_blocks": "geowidth.cascade.blocks",
    "correlate": "geowidth.cascade.correlation",
    "gradient_directions": "geowidth.cascade.directions",
    "predicted_fan_in": "geowidth.cascade.fan_in",
    "Importance": "geowidth.cascade.importance",
    "block_importance": "geowidth.cascade.importance",
    "GradientLedger": "geowidth.cascade.ledger",
    "compare_importance": "geowidth.cascade.ledger_and_importance",
    "cascade_models": "geowidth.cascade.models",
    "matched_uniform": "geowidth.cascade.models",
    "write_cascade_models": "geowidth.cascade.model_files",
    "prune": "geowidth.cascade.pruning",
    "RULES": "geowidth.cascade.scores",
    "Rule": "geowidth.cascade.scores",
    "RankStability": "geowidth.cascade.stability",
    "rank_stability": "geowidth.cascade.stability",
    "run_study": "geowidth.cascade.study",
    "ARMS": "geowidth.cascade.study_arms",
    "StudyArm": "geowidth.cascade.study_arms",
    "resolve_study": "geowidth.cascade.study_design",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy.face(__name__, _HOMES)
