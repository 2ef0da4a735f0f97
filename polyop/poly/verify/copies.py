"""That an Op which computes elements several times computes what another one does: see `ir/copies.py` for the claims.

Of both it is known that each element is computed once, from elements that are computed before (`poly/wellformed.py`). So it is
enough that each step of the one does what its origin in the other does, at the element that it claims: by induction along the
order every copy then has the value of the element that it is one of. With

    lift   { S'[..] -> S[..] }      an instance and its origin
    label  { T'[..] -> T[..] }      an element and what it is a copy of, itself where it is none

each step must

    run only where its origin does                      ran lift  is in  dom S
    write what its origin writes                        label . write'  =  write . lift
    read what its origin reads, in an equal tree        label . read'   =  read . lift
    if it adds up, have all terms of each element, once:    { T' -> S } of write'^-1 . lift  =  label . write^-1,  and lift is one
                                                        to one for each element
"""

from __future__ import annotations

from dataclasses import dataclass

import islpy as isl

from polyop.cached import cached_property
from polyop.ir.copies import Copies, Origin, Recomputed
from polyop.ir.expr import Load, is_computed, substitute_expr
from polyop.ir.module import Proof
from polyop.poly.scop import INIT, UPDATE, Scop, Stmt
from polyop.poly.sets import conjunction, params, space_text
from polyop.poly.verify.same import Operand, compare
from polyop.poly.verify.verdict import decided

CLAIM = "each copy of an element is computed as the element is"


def same_elements(scop: Scop, made: Recomputed, new: Scop) -> Proof:
    """Whether `made`, whose Scop is `new`, computes what the Op of `scop` does."""
    return decided(CLAIM, lambda: _Elements(scop, made, new).fault())


@dataclass(frozen=True, eq=False)
class _Elements:
    scop: Scop
    made: Recomputed
    new: Scop

    @property
    def head(self) -> str:
        return params(self.scop.op.sizes)

    @cached_property
    def copies(self) -> dict[str, Copies]:
        return {c.name: c for c in self.made.copies}

    @cached_property
    def carried(self) -> list[tuple[Stmt, Origin]]:
        """The statements that are no inits, with their origins."""
        return [(s, self.made.origins[s.step]) for s in self.new.stmts if s.kind != INIT]

    def fault(self) -> str | None:
        """What is wrong, or None."""
        if len(self.made.origins) != len(self.made.op.steps) or self.scop.op.sizes != self.new.op.sizes:
            return "there are not as many origins as steps"
        strange = [t.name for t in self.new.op.tensors if t.name not in self.copies and t not in self.scop.op.tensors]
        if strange or set(self.scop.op.outputs) != set(self.new.op.outputs):
            return f"the tensors are others: {', '.join(strange)}"
        for s, origin in self.carried:
            reason = self.moves(s) if origin.step is None else self.carries_out(s, self.old(origin.step), origin)
            if reason:
                return f"step {s.step}, {s.target}: {reason}"
        return self.terms()

    def old(self, step: int) -> Stmt:
        return next(s for s in self.scop.stmts if s.step == step and s.kind != INIT)

    # --- relations
    def lift(self, s: Stmt, old: Stmt, origin: Origin) -> isl.Map:
        text = f"{self.head}{{ {space_text(s.name, s.dims)} -> {space_text(old.name, origin.lift)} }}"
        return isl.Map(text).intersect_domain(s.domain.intersect_params(self.new.context))

    def label(self, tensor: str) -> isl.Map:
        """{ tensor[..] -> what it is a copy of }."""
        c = self.copies.get(tensor)
        if c is None:
            return self.new.box(tensor).identity()
        within = conjunction(f"0 <= {i} < {e}" for i, e in zip(c.indices, self.new.op.tensor(tensor).shape, strict=True))
        return isl.Map(f"{self.head}{{ {space_text(tensor, c.indices)} -> {space_text(c.of, c.index)} : {within} }}")

    def place(self, s: Stmt, load: Load) -> isl.Map:
        """{ S'[..] -> what `load` finds there, as an element of the other Op }, where it is read."""
        return s.access(load).intersect_params(self.new.context).apply_range(self.label(load.source))

    # --- one statement
    def moves(self, s: Stmt) -> str | None:
        if s.kind == UPDATE or not isinstance(s.expr, Load) or s.expr.guard or is_any_computed(s.expr, s.target):
            return "it computes something and carries out no step"
        same = self.place(s, s.expr).is_equal(self.place(s, s.target))
        return None if same else "it moves an element to the place of another"

    def carries_out(self, s: Stmt, old: Stmt, origin: Origin) -> str | None:
        if len(origin.lift) != len(old.dims) or s.reduce != old.reduce or s.target.dtype != old.target.dtype:
            return f"it is no {old.name}"
        lift = self.lift(s, old, origin)
        if not lift.range().is_subset(old.domain):
            return f"{lift.range().subtract(old.domain).sample_point()} is no instance"
        env = dict(zip(old.dims, origin.lift, strict=True))
        pairs = [(old.target, s.target)]
        for x in compare(old.expr, s.expr, env):
            if not isinstance(x, Operand):
                return str(x)
            pairs.append((x.wanted, x.given))
        for wanted, given in pairs:
            if is_any_computed(wanted, given):
                if substitute_expr(wanted, env) != given:
                    return f"{given} is not known to be {wanted}"
                continue
            found, theirs = self.place(s, given), lift.apply_range(old.access(wanted))
            if not found.is_equal(theirs):
                return f"{given} is not {wanted}: {found.subtract(theirs).union(theirs.subtract(found)).sample()}"
        return None

    # --- reductions
    def terms(self) -> str | None:
        """Each element that is added up has all terms of what it is a copy of, each once."""
        for t in self.new.op.tensors:
            inits = [s for s in self.new.stmts if s.kind == INIT and s.target.source == t.name]
            if not inits:
                continue
            elements = inits[0].access(inits[0].target).intersect_params(self.new.context).range()
            of = self.copies[t.name].of if t.name in self.copies else t.name
            for n, old in ((s.step, s) for s in self.scop.stmts if s.kind == UPDATE and s.target.source == of):
                mine = [(s, o) for s, o in self.carried if o.step == n and s.target.source == t.name]
                if any(is_any_computed(s.target) for s, _ in mine) and t.name == of:
                    continue  # the tree is its origin's, word for word
                theirs = self.label(t.name).apply_range(old.access(old.target).reverse()).intersect_domain(elements)
                if len(mine) != 1:
                    if mine or not theirs.is_empty():
                        return f"{t.name} is added to by {len(mine)} steps that carry out {old.name}"
                    continue
                s, origin = mine[0]
                writes, lift = s.access(s.target).intersect_params(self.new.context), self.lift(s, old, origin)
                found = writes.reverse().apply_range(lift)
                if not theirs.is_equal(found):
                    return f"{t.name} has not the terms of {of}: {theirs.subtract(found).union(found.subtract(theirs)).sample()}"
                if not writes.intersect_domain(lift.domain()).range_product(lift).is_injective():
                    return f"{t.name} has a term twice"
        return None


def is_any_computed(*places: Load) -> bool:
    """Whether a position of one of them comes from data."""
    return any(is_computed(p) for x in places for p in x.index)

