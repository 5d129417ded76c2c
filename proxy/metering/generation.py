"""The usage of an ended answer, as OpenRouter and Vercel report it afterwards: `GET /generation?id=`.

https://openrouter.ai/docs/api-reference/get-a-generation, https://vercel.com/docs/ai-gateway/usage

Invariants: counts are those of the model's own tokenizer, as in these providers' answers, or flagged. No member is kept
but numbers of the usage: the object also names the client's user and program.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.metering.counts import with_total
from proxy.metering.meter import JsonMeter
from proxy.metering.metered import BodyMeter
from proxy.metering.tally import Tally, says_error, word
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import service_of
from proxy.metering.usage_reader import UsageReader
from proxy.metering.wire.json_reader import reader

ID_STARTS = ("gen-", "gen_")
"""the beginnings of ids that can be asked about: OpenRouter's and Vercel's"""

OTHER_TOKENIZER = "other_tokenizer"
"""a flag: a count is that of another tokenizer than the model's own, which is not reported (yet)"""

# OpenRouter's older `tokens_…` are those of another tokenizer; they apply where a model's own are not reported.
_reported = UsageReader(
    prompt_tokens="native_tokens_prompt, tokens_prompt",
    completion_tokens="native_tokens_completion, tokens_completion",
    reasoning_tokens="native_tokens_reasoning",
    cached_tokens="native_tokens_cached",
    image_completion_tokens="native_tokens_completion_images",
)
_OF_OTHER = ("tokens_prompt", "tokens_completion")
_BEHIND = "upstream_inference_cost"
_KEPT = (*_reported.paths.split(), "total_cost", _BEHIND, "is_byok")
# Ids, names and times, and an amount that the total has in it. Not `cache_discount`: a negative one is the only sign of
# tokens that were written to a cache, which have a price of their own.
_OTHERS = """
id upstream_id created_at model provider_name app_id http_referer user_agent origin external_user preset_id router
api_type streamed cancelled finish_reason native_finish_reason latency moderation_latency generation_time usage
service_tier provider_responses web_search_engine session_id request_id data_region
"""


class _Answer(msgspec.Struct, gc=False):
    data: dict[str, Any] | None = None
    error: Any = None


_answer_of = reader(_Answer)


class GenerationTally(Tally):
    """The usage of one answer; its text is not in it."""

    __slots__ = ()

    known = members("error", each("data", " ".join((*_KEPT, _OTHERS))))

    def read_answer(self, body: bytes) -> bool:
        answer = _answer_of(body)
        if answer is None:
            return False
        if says_error(answer.error):
            self.fail("error_body")
        if data := answer.data:
            self.done = True
            self.finish_reason = word(str(data["finish_reason"])) if data.get("finish_reason") else None
            self.served_as = service_of(data.get("service_tier"))
            self._report(_usage_in(data), with_total(_reported(data, self.flags)))
            if any(data.get(name) is not None and data.get(f"native_{name}") is None for name in _OF_OTHER):
                self.flags.add(OTHER_TOKENIZER)
        return True


def _usage_in(data: dict[str, Any]) -> dict[str, Any]:
    """The members with the usage; of the cost, by the names that it has in the usage of an answer."""
    usage = {name: data[name] for name in _KEPT if data.get(name) is not None}
    costs = {"cost": data.get("total_cost"), "cost_details": {_BEHIND: data.get(_BEHIND)}}
    return usage | {name: cost for name, cost in costs.items() if usage.get("total_cost") is not None}


def generation_meter() -> BodyMeter:
    """A meter of one answer about a generation."""
    return JsonMeter(GenerationTally)
