// Runs scenarios one after the other and prints what each came to, a JSON line each.

export const QUESTION = "How much water goes over the weir?";
export const READ_TOKENS = 12;
export const GATE = { type: "object", properties: { by_cm: { type: "integer" } } };

// In the ledger's words: the prompt includes what a cache gave or took.
export function usage(prompt, cached, completion) {
  return { prompt_tokens: prompt, cached_tokens: cached ?? 0, completion_tokens: completion };
}

// `scenarios`: name → (model, report); `failure` says what an error of the SDK is.
export async function all(scenarios, failure) {
  for (const [scenario, run] of Object.entries(scenarios)) {
    const told = { scenario };
    try {
      await run(process.env.MODELS + scenario, told);
    } catch (raised) {
      told.error = failure(raised);
    }
    console.log(JSON.stringify(told));
  }
}
