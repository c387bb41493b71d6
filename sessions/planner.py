"""What is asked of the stages for a response: whose it is, its prompt, and the options of each leg of its way.

Rules
* The response says first what it shall be, then the session, then the service.
* A prompt opens with the instructions and the examples of the service, which seldom change.
* The instructions are those of the moment in which the response was asked for.
* Tools stand in every prompt, also where none may be called now: a prompt's beginning stays put. What prompts a caller
  who says nothing calls none.
* Those that the service carries out itself come first, and go by their names before what a client has declared. Out of
  band there are none: no history would hold what came of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from msgspec import structs

from sessions.events import ResponseView
from sessions.far_side import MachinePolicy
from sessions.plan import Plan
from sessions.prompt import GO_ON, GOODBYE, IDLE
from sessions.return_policy import ReturnPolicy
from sessions.route import Leg, LegKind, Route
from sessions.service_calls import ServiceTool
from sessions.settings import Modality, ResponseSpec, SessionSettings
from stages.contracts import (
    OUT_OF_BAND,
    Message,
    ObserverOptions,
    Options,
    Tag,
    TalkerOptions,
    ThinkerOptions,
    Tool,
    ToolChoice,
    VocoderOptions,
)


@dataclass(frozen=True, slots=True)
class ReplyDefaults:
    """What a response is where neither client nor session says otherwise. `examples` open every prompt.

    `prepare`: begin answers in the pause that may end the caller's turn. `context_characters_max`: of the history, as
    much as a prompt brings along. `voices`: the names that can be asked for; any other means the first of them.
    `service_tools`: those that the service carries out itself.
    `filler`: what bridges a long wait for a reply. `machines`: what is done where one answers. `returns`: what is done
    where a client comes back.
    """

    instructions: str
    max_output_tokens: int
    temperature: float = 0.0
    examples: tuple[Message, ...] = ()
    prepare: bool = True
    context_characters_max: int = 2_400
    voices: tuple[str, ...] = ()
    service_tools: tuple[ServiceTool, ...] = ()
    filler: str = ""
    machines: MachinePolicy = field(default_factory=MachinePolicy)
    returns: ReturnPolicy = field(default_factory=ReturnPolicy)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the conversation is, and of which `tenant`. `epoch` is where it starts; `new_id(prefix)` gives ids that are
    never reused."""

    session: str
    epoch: int
    new_id: Callable[[str], str]
    tenant: str = ""


class Planner:
    """The plans of one conversation."""

    def __init__(self, identity: Identity, defaults: ReplyDefaults, route: Route) -> None:
        self._identity = identity
        self._defaults = defaults
        self._route = route

    def plan(
        self,
        spec: ResponseSpec,
        settings: SessionSettings,
        history: tuple[Message, ...],
        *,
        epoch: int,
        turn: int,
        previous: str | None,
    ) -> Plan:
        """A new response of `turn`, that follows the item `previous` and has read `history`."""
        # Settings that change while it waits are for the next one.
        spec = replace(spec, instructions=spec.instructions or settings.instructions)
        modalities = self._modalities(spec, settings)
        epoch = epoch if spec.in_conversation else OUT_OF_BAND
        tag = Tag(self._identity.session, epoch, turn, self._identity.new_id("resp"))
        item = self._identity.new_id("item")
        tools, choice = self.tooling(spec, settings)
        view = ResponseView(
            tag.response,
            item,
            epoch,
            modalities,
            spec.in_conversation,
            spec.metadata,
            turn=turn,
            may_call=bool(tools) and choice.mode != "none" and not spec.words,
        )
        stages = self.stages(spec, settings, history)
        with_audio = "audio" in modalities
        served = frozenset(tool.name for tool in self._served(spec))
        is_continued = spec.in_conversation and any(message.role == "assistant" for message in history)
        return Plan(spec, tag, item, previous, stages, with_audio, view, settings.output_format, served, is_continued)

    def stages(
        self, spec: ResponseSpec, settings: SessionSettings, history: tuple[Message, ...]
    ) -> tuple[tuple[Leg, Options], ...]:
        """The legs of a response's way, head first, with what each is asked for."""
        limit = spec.max_output_tokens or settings.max_output_tokens or self._defaults.max_output_tokens
        temperature = next(
            (value for value in (spec.temperature, settings.temperature) if value is not None),
            self._defaults.temperature,
        )
        messages = self.messages(spec, settings, history)
        voice = settings.voice if settings.voice in self._defaults.voices else ""
        tools, choice = self.tooling(spec, settings)
        options: dict[LegKind, Options] = {
            "thinker": ThinkerOptions(messages, limit, temperature, not spec.in_conversation, tools, choice),
            "talker": TalkerOptions(voice, settings.speed),
            "vocoder": VocoderOptions(settings.output_rate, voice),
            "observer": ObserverOptions(),
        }
        legs = (
            self._route.voice()
            if spec.words
            else self._route.legs_of(with_audio="audio" in self._modalities(spec, settings))
        )
        return tuple((leg, options[leg.kind]) for leg in legs)

    def would_make(
        self, plan: Plan, spec: ResponseSpec, settings: SessionSettings, history: tuple[Message, ...]
    ) -> bool:
        """A response of `spec` that begins now is made and heard as `plan` says."""
        stages = self.stages(spec, settings, history)
        return plan.stages == stages and plan.output_format == settings.output_format

    def stages_of(
        self, plan: Plan, settings: SessionSettings, history: tuple[Message, ...]
    ) -> tuple[tuple[Leg, Options], ...]:
        """What `plan` asks of its stages, but that `history` is read. Words that are given read none."""
        if plan.spec.words:
            return plan.stages
        (head, options), *followers = plan.stages
        assert isinstance(options, ThinkerOptions), "the Thinker heads every response whose words are not given"
        messages = self.messages(plan.spec, settings, history)
        return ((head, structs.replace(options, messages=messages)), *followers)

    @staticmethod
    def _modalities(spec: ResponseSpec, settings: SessionSettings) -> tuple[Modality, ...]:
        return ("audio",) if spec.words else spec.modalities or settings.modalities

    def _served(self, spec: ResponseSpec) -> tuple[Tool, ...]:
        return tuple(each.tool for each in self._defaults.service_tools) if spec.in_conversation else ()

    def tooling(self, spec: ResponseSpec, settings: SessionSettings) -> tuple[tuple[Tool, ...], ToolChoice]:
        """The tools that are told to the model, and whether one is to be called."""
        served = self._served(spec)
        names = {tool.name for tool in served}
        declared = settings.tools if spec.tools is None else spec.tools
        # Names were free when they were declared; a session may outlive the configuration.
        tools = (*served, *(tool for tool in declared if tool.name not in names))
        choice = spec.tool_choice or settings.tool_choice
        if not tools or (choice.name and all(tool.name != choice.name for tool in tools)):
            choice = ToolChoice()
        return tools, ToolChoice("none") if spec.idle and tools else choice

    def messages(
        self, spec: ResponseSpec, settings: SessionSettings, history: tuple[Message, ...]
    ) -> tuple[Message, ...]:
        """The prompt: instructions, examples, then `history` or what the response brings along instead."""
        instructions = spec.instructions or settings.instructions or self._defaults.instructions
        opening = (Message("system", instructions), *self._defaults.examples)
        if spec.messages is not None:
            return opening + tuple(Message(role, text) for role, text in spec.messages)
        return opening + history + _asked(spec)


def _asked(spec: ResponseSpec) -> tuple[Message, ...]:
    """Of the model, where nobody has said anything that it is to answer."""
    if spec.idle is not None:
        return (IDLE,) if spec.idle == "prompt" else (GOODBYE,)
    return (GO_ON,) if spec.goes_on else ()
