"""The step under way, and where the script is in its training.

Decisions alone: nothing here knows tensors or workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from pliant.tools.run.elastic.loop.batches import MicroBatch
from pliant.tools.run.elastic.state.training import Mean

NOTHING_AWAITED: Final = -1
_DRAWS_OF_LOOP: Final = 1 << 20
"""Number of the first draw of a loop over the micro-steps, times the number of that loop."""


class LoopPhase(Enum):
    """Where the script is in its training, on this worker."""

    BEFORE = "before the training"
    BETWEEN_EPOCHS = "between two epochs"
    """The library's own code, or the script after the last epoch."""
    IN_EPOCH = "in an epoch"
    """The body of the loop over epochs, outside of the loop over batches."""
    IN_BATCHES = "in the loop over batches or steps"


class PassMode(Enum):
    """How much the pass of the loop body counts."""

    COUNTS = "counts"
    JOINED = "joined"
    """The worker joined in the middle of the step: nothing counts until the others wait for it."""
    REPLAYS = "replays"
    """The same, and the worker joined the others in this pass."""
    MADE = "made"
    """The workers changed after the optimizers of the pass had stepped: the rest of that part counts."""
    VOID = "void"
    """The workers changed before: nothing counts in the rest of the pass."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing counts, so that nothing is exchanged with other workers."""
        return self in _IDLE

    @property
    def is_changed(self) -> bool:
        """Whether the workers have changed in the pass."""
        return self in _CHANGED


_IDLE: Final = (PassMode.JOINED, PassMode.REPLAYS, PassMode.VOID)
_CHANGED: Final = (PassMode.REPLAYS, PassMode.MADE, PassMode.VOID)


class InnerLoop(Enum):
    """Whether the loop body takes the micro-steps of its step itself."""

    NONE = "none"
    BEGUN = "begun"
    COMPLETE = "complete"


class StepOutcome(Enum):
    """What becomes of a step at the end of a pass."""

    NEXT = "next micro-step"
    TURN = "repeated for the next optimizer"
    RETRY = "repeated from its start"
    COUNTED = "counted"
    DROPPED = "dropped"


@dataclass(slots=True)
class Step:
    """The step under way, and the pass of the loop body that trains a part of it.

    A step is one pass or several: a pass for each micro-step, and again for each optimizer where these take
    turns. A pass trains the *part* whose turn it is. Part 0 begins with the pass, the next one where a model
    is trained after an optimizer was called. A part is *made* when its optimizer has stepped.

    What happens where the script calls an optimizer, where a pass ends, and where the script leaves its loop:

    ==============  =========  ===============================  ==========================================
    state           event      what happens                     why
    ==============  =========  ===============================  ==========================================
    its turn        optimizer  acts
    its turn        end        counted
    its turn        left       dropped                          the script did not want the step
    stepped         left       counted
    micro-step      optimizer  quiet                            the gradients are not complete
    micro-step      end        next micro-step
    micro-step      left       dropped
    earlier part    optimizer  quiet                            it has stepped in an earlier pass
    earlier part    end        counted                          the pass has left out the later part
    later part      optimizer  quiet                            its turn is the next pass
    later part      end        repeated for the next optimizer
    later part      left       dropped
    joined          optimizer  quiet                            the others have made what comes first
    joined          end        counted                          the others have ended the pass, too
    replays         optimizer  quiet
    replays         end        dropped                          the next pass begins where the others are
    made            optimizer  acts                             all workers are in the part that was made
    made            end        counted
    made            left       counted
    made elsewhere  end        dropped                          the step has been counted with the new state
    void            optimizer  quiet
    void            end        dropped                          the next pass trains the step again
    void            left       dropped
    worker lost     optimizer  quiet                            its gradients are missing
    worker lost     end        repeated from its start
    worker lost     left       dropped
    ==============  =========  ===============================  ==========================================

    Scripts see *quiet* as an ``optimizer.step()`` without effect. A step that is counted moves the counters,
    and the next boundary may save it. One that is dropped leaves no trace but what the script has written.
    """

    micro: MicroBatch | None = None
    """Micro-batch of the pass; None between two passes."""
    under_way: bool = False
    began_s: float = 0.0
    """Monotonic time."""
    is_agreed: bool = False
    """Whether the workers have begun to agree on what follows the step: its batch is trained."""
    stepped: bool = False
    """Whether an optimizer has made its step, in this pass or in one before."""
    losses: Mean = field(default_factory=Mean)
    number: int = 0
    """Steps of the training before the pass began."""
    has_gradients: bool = False
    """Whether a backward pass has reached the models in this pass."""
    part: int = 0
    """Part that the pass has come to."""
    turn: int = 0
    """Part that the pass trains."""
    part_over: bool = False
    """Whether an optimizer was called: what is trained next is another part."""
    has_closure: bool = False
    """Whether the optimizer that is called next has a closure."""
    mode: PassMode = PassMode.COUNTS
    awaited: int = NOTHING_AWAITED
    """Number of the shared value that the other workers wait for, in the middle of a step."""
    inner: InnerLoop = InnerLoop.NONE
    values: int = 0
    """Shared values that the script has asked for since the pass, or the part of the epoch, began."""
    draws: int = 0
    """Draws of the script since the pass began."""

    def begin(self, now_s: float, parts: int) -> None:
        """Begin a step.

        :param parts: parts that are made already, where a checkpoint or another worker had them.
        """
        self.stepped, self.is_agreed, self.began_s = parts > 0, False, now_s

    def begin_pass(self, parts: int, number: int) -> None:
        """Begin a pass of the loop body.

        :param parts: parts of the step that are made.
        :param number: steps of the training so far.
        """
        self.under_way, self.has_gradients = True, False
        self.number, self.turn = number, parts
        self.values = self.part = self.draws = 0
        self.part_over, self.inner = False, InnerLoop.NONE
        self.mode = PassMode.COUNTS if self.awaited == NOTHING_AWAITED else PassMode.JOINED

    def begin_part(self, parts: int, *, whole: bool) -> None:
        """A model is trained after an optimizer was called.

        :param whole: whether the pass is all of its step, so that it trains each part in turn.
        """
        self.part_over = False
        self.part += 1
        if self.mode is PassMode.MADE:
            self.mode = PassMode.VOID
        elif not self.mode.is_changed and whole:
            self.turn = parts

    def begin_inner(self, loop: int) -> None:
        """The loop body takes a micro-step by itself, in one of its loops over them, from 1."""
        self.draws = _DRAWS_OF_LOOP * loop

    def acts(self, *, is_lost: bool = False) -> bool:
        """Whether an optimizer that is called now makes its step."""
        micro, ends_part = self.micro, self.part == self.turn
        return not is_lost and (micro is None or (micro.last and ends_part)) and not self.mode.is_idle

    def reach_others(self, parts: int) -> None:
        """All workers are at this place of the step: what follows counts if the part was made."""
        self.awaited = NOTHING_AWAITED
        self.mode = PassMode.MADE if parts > self.part else PassMode.VOID
        if self.mode is PassMode.MADE:
            self.turn = self.part  # a worker that came with this state acts as those that trained the part

    def outcome(self, parts: int, *, is_past: bool, is_lost: bool, left: bool = False) -> StepOutcome:
        """What becomes of the step now that its pass ends.

        :param parts: parts that are made.
        :param is_past: whether the other workers have counted the step.
        :param is_lost: whether a worker was lost in the step.
        :param left: whether the script has left the loop over batches.
        """
        micro = self.micro
        if self.mode.is_changed:
            is_made = micro is not None and not is_past and parts > self.part
            return StepOutcome.COUNTED if is_made else StepOutcome.DROPPED
        if left and not self.stepped:
            return StepOutcome.DROPPED
        if micro is None or not micro.last:
            return StepOutcome.DROPPED if left else StepOutcome.NEXT
        if is_lost:
            return StepOutcome.RETRY
        waits = self.part > self.turn and max(parts, self.turn + 1) <= self.part
        return StepOutcome.TURN if waits and not left else StepOutcome.COUNTED

    def take_losses(self) -> Mean:
        """The losses that the script has logged since the last call."""
        losses, self.losses = self.losses, Mean()
        return losses
