"""Finite CMDPs solved exactly: optimal policies, optimal multipliers, and the proof that they are optimal.

cmdp = FiniteCMDP.of(transition, reward, cost, start, discount, limits)
optimum = exact.solve(cmdp)
optimum.value, optimum.costs, optimum.multipliers, optimum.policy, optimum.certificate.holds
"""

from apdo.exact.certificate import Certificate, certify
from apdo.exact.dual import DualPoint, lagrangian
from apdo.exact.evaluation import Evaluation, evaluate
from apdo.exact.files import load, save, save_solution
from apdo.exact.solution import METHODS, Infeasible, Solution, TradeOff, mixed_states, solve, trade_off, trade_offs
from apdo.exact.words import describe
from apdo.finite import FiniteCMDP, fold_time

__all__ = [
    "METHODS",
    "Certificate",
    "DualPoint",
    "Evaluation",
    "FiniteCMDP",
    "Infeasible",
    "Solution",
    "TradeOff",
    "certify",
    "describe",
    "evaluate",
    "fold_time",
    "lagrangian",
    "load",
    "mixed_states",
    "save",
    "save_solution",
    "solve",
    "trade_off",
    "trade_offs",
]
