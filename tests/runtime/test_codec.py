"""The JSON codec of `ir`."""

import contextlib
import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyop.ir import expr
from polyop.ir.codec import CodecError, decode, encode
from polyop.ir.dtypes import DTYPES, F32, I64
from polyop.ir.expr import Affine, Apply, Const, Load, Number, Scalar, affine, quasi
from polyop.ir.loops import Buffer, Space, Turn
from polyop.ir.module import Proof, Signature

names = st.sampled_from(["i", "j", "N", "M"])
affines = st.recursive(
    st.builds(affine, st.one_of(names, st.integers(-9, 9))),
    lambda x: st.one_of(st.builds(lambda a, b: a + b, x, x), st.builds(lambda a, f: a * f, x, st.integers(-3, 3)),
                        st.builds(lambda op, a, b: quasi(op, a, b), st.sampled_from(["min", "max"]), x, x),

                        st.builds(lambda op, a, d: quasi(op, a, Affine(const=d)), st.sampled_from(["div", "mod"]), x,
                                  st.integers(1, 5))),
    max_leaves=5)
dtypes = st.sampled_from(list(DTYPES.values()))
exprs = st.recursive(
    st.one_of(st.builds(Const, st.one_of(st.floats(allow_nan=False), st.integers(), st.booleans()), dtypes),
              st.builds(Number, affines, dtypes), st.builds(Scalar, names, dtypes),
              st.builds(expr.Test, st.lists(affines, max_size=2).map(tuple))),
    lambda x: st.one_of(st.builds(Apply, st.sampled_from(["add", "exp"]), st.lists(x, max_size=2).map(tuple), dtypes),
                        st.builds(Load, names, st.lists(st.one_of(affines, x), max_size=2).map(tuple), dtypes)),
    max_leaves=4)

SIGNATURE = Signature(
    "gather", ("N", "V"), (("a", F32),),
    (Buffer("ids", I64, ((affine("N"), 1),), Space.TENSOR, 0), Buffer("E", F32, ((affine("V"), 1),), Space.TENSOR, None)),
    (Buffer("w", F32, ((quasi("min", affine("N"), Affine(const=8)), 4),), Space.WORK, pad=16, private=True),
     Buffer("t", F32, ((Affine(const=8), 1), (Affine(const=8), 1)), Space.SHARED, turned=Turn.PAIRS)),
    (Load("E", (Load("ids", (affine("i"),), I64),), F32),))


@settings(deadline=None)
@given(st.lists(exprs.filter(lambda e: isinstance(e, Load)), max_size=2).map(tuple))
def test_what_is_encoded_decodes_to_itself(sites):
    s = Signature("k", ("N",), (), (), (), sites)
    assert decode(Signature, json.loads(json.dumps(encode(s)))) == s


def test_a_signature_and_a_proof_survive_json():
    for value in (SIGNATURE, Proof("all writes happen once", False, "N = 2", 0.25)):
        assert decode(type(value), json.loads(json.dumps(encode(value)))) == value


def places(data, path=()):
    yield path
    for k, v in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from places(v, (*path, k))


@pytest.mark.parametrize("wrong", [None, 17, "os", {"Popen": []}, [[]], {"Affine": [[], "x"]}, {"Affine": [[["i", 1.5]], 0]}])
def test_anything_foreign_anywhere_is_refused_or_still_a_signature(wrong):
    data = encode(SIGNATURE)
    for path in places(data):
        changed = copy.deepcopy({"": data})
        at, path = changed, ("", *path)
        for k in path[:-1]:
            at = at[k]
        at[path[-1]] = wrong
        with contextlib.suppress(CodecError):
            assert isinstance(decode(Signature, changed[""]), Signature)


def test_an_unknown_class_is_refused():
    with pytest.raises(CodecError):
        decode(Signature, {"Popen": ["rm"]})


def test_a_missing_field_is_refused():
    data = encode(SIGNATURE)
    data["Signature"].pop()
    with pytest.raises(CodecError, match="wrong number of fields"):
        decode(Signature, data)
