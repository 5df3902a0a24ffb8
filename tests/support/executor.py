"""The scripted executor, under the name that `--executor` and older tests know."""

from asynsched.simulation.executor import Outcome, Script, ScriptedExecutor

__all__ = ["Outcome", "Script", "ScriptedExecutor"]
