"""What PyTorch's operators read and write, by their schema."""

from __future__ import annotations

import threading

import pytest
import stand_in_torch
from stand_in_torch import Operator, torch

from gpuscope.races import operators

needs_pytorch = pytest.mark.skipif(not stand_in_torch.IS_REAL, reason="needs PyTorch")


@pytest.fixture
def seen():
    """Operators that ran: name → [(argument or result, access)]."""
    calls = []

    def dispatch(function, args, kwargs):
        result = function(*args, **kwargs)
        operator = operators.operator_of(function)
        if operator is not None:
            calls.append((operator, operator.uses(args, kwargs, result), (args, kwargs)))
        return result

    with operators.watching(torch, dispatch):
        yield calls


def uses(seen, **names):
    """Return {name: access} of the only operator that ran."""
    (_, used, _), *more = seen
    assert not more
    addresses = {value.data_ptr(): name for name, value in names.items()}
    return {
        addresses.get(use.tensor.data_ptr(), "new"): "r" * use.reads + "w" * use.writes
        for use in used
    }


A, B = torch.rand(4, 4), torch.rand(4, 4)


def test_out_of_place(seen):
    torch.add(A, B)
    assert uses(seen, a=A, b=B) == {"a": "r", "b": "r", "new": "w"}


def test_in_place(seen):
    c = A.clone()
    del seen[:]
    c.add_(B)
    assert uses(seen, b=B, c=c) == {"c": "rw", "b": "r"}


def test_a_result_that_is_given(seen):
    c = torch.empty(4, 4)
    torch.mm(A, B, out=c)
    assert uses(seen, a=A, b=B, c=c) == {"a": "r", "b": "r", "c": "w"}


def test_lists_of_tensors(seen):
    torch.cat([A, B])
    assert uses(seen, a=A, b=B) == {"a": "r", "b": "r", "new": "w"}


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.view(16),
        lambda a: a.t(),
        lambda a: a[1:, 2],
        lambda a: a.split(2),
        lambda a: a.expand(2, 4, 4),
        lambda a: a.detach(),
        lambda a: torch.ops.aten._unsafe_view(a, [16]),
        lambda a: a.is_set_to(a),
        torch.empty_like,
        lambda a: a.new_empty(3),
    ],
)
def test_what_touches_no_memory(seen, view):
    view(A)
    assert not seen


def test_a_factory_reads_a_shape_only(seen):
    torch.zeros_like(A)
    assert uses(seen, a=A) == {"new": "w"}


def test_copies_say_whether_they_wait(seen):
    c = torch.empty(4, 4)
    c.copy_(A)
    c.copy_(A, non_blocking=True)
    A.to(torch.float64, non_blocking=True)
    assert all(operator.copies for operator, _, _ in seen)
    assert [operator.returns_at_once(*call) for operator, _, call in seen] == [False, True, True]
    assert {use.tensor.data_ptr(): use.reads for use in seen[0][1]} == {
        c.data_ptr(): False,
        A.data_ptr(): True,
    }


@needs_pytorch
def test_backward_is_seen(seen):
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    assert [operator.name for operator, _, _ in seen].count("aten::mul") == 2


def test_lists_are_written(seen):
    c, d = A.clone(), B.clone()
    del seen[:]
    torch._foreach_add_([c, d], 1)
    assert uses(seen, c=c, d=d) == {"c": "rw", "d": "rw"}


def test_a_number_is_read_from_memory(seen):
    A[0, 0].item()
    assert uses(seen, a=A) == {"a": "r"}


def test_what_has_no_schema_is_not_seen():
    assert not operators.operator_of(object()).seen


def test_a_collective_says_not_what_it_does():
    assert not operators.operator_of(Operator("c10d::barrier(Tensor tensor) -> ()")).seen


@pytest.mark.parametrize(
    ("name", "use"),
    [("resize_", "rw"), ("copy_", "rw"), ("empty_out", "rw"), ("mean_like", "rw")],
)
def test_the_name_of_another_librarys_operator_says_nothing(name, use):
    operator = operators.operator_of(Operator(f"mine::{name}(Tensor(a!) self, Tensor b) -> ()"))
    assert operator.name == f"mine::{name}"
    assert operator.arguments == ((0, "self", True, True), (1, "b", True, False))
    assert not operator.copies


@pytest.fixture
def watched():
    calls = []

    def dispatch(function, args, kwargs):
        calls.append(function)
        return function(*args, **kwargs)

    watching = operators.watching(torch, dispatch)
    watching.__enter__()
    del calls[:]
    yield watching, calls
    torch.utils._python_dispatch._get_current_dispatch_mode().__exit__(None, None, None)


def test_a_mode_that_was_entered_since_stays(watched):
    watching, calls = watched

    class Mine(torch.utils._python_dispatch.TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
            self.count += 1
            return function(*args, **(kwargs or {}))

    with Mine() as mine:
        torch.add(A, B)
        assert (mine.count, len(calls)) == (1, 1)
        watching.__exit__(None, None, None)
        torch.add(A, B)
    torch.add(A, B)
    assert (mine.count, len(calls)) == (2, 1)


def test_ended_by_another_thread_it_hears_no_more(watched):
    watching, calls = watched
    thread = threading.Thread(target=watching.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    torch.add(A, B)
    assert not calls


@needs_pytorch
@pytest.mark.parametrize("stand_in", stand_in_torch.OPERATORS.values(), ids=str)
def test_the_stand_ins_schemas_are_pytorchs(stand_in):
    name, _, overload = str(stand_in).removeprefix("aten.").partition(".")
    real, schema = getattr(getattr(torch.ops.aten, name), overload), stand_in._schema
    assert (str(real), real.__name__) == (str(stand_in), stand_in.__name__)
    assert (str(real._schema), real._schema.name) == (str(schema), schema.name)
    for theirs, ours in (
        (real._schema.arguments, schema.arguments),
        (real._schema.returns, schema.returns),
    ):
        assert [facts(each) for each in theirs] == [facts(each) for each in ours]


def facts(argument):
    alias = argument.alias_info
    writes = alias.is_write if alias is not None else None
    return argument.name, str(argument.type), writes, argument.is_out, argument.kwarg_only
