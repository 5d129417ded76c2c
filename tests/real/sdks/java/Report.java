import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Function;

/** Runs scenarios one after the other and prints what each came to, a JSON line each. */
final class Report {
    /** Does one thing with the SDK; `model` is the scenario's own, `told` what it reports. */
    interface Scenario {
        void run(String model, Map<String, Object> told) throws Exception;
    }

    static final String QUESTION = "How much water goes over the weir?";
    static final int READ_TOKENS = 12;

    private Report() {}

    static String environment(String name) {
        return System.getenv(name);
    }

    /** In the ledger's words: the prompt includes what a cache gave or took. */
    static Map<String, Long> usage(long prompt, long cached, long completion) {
        return Map.of("prompt_tokens", prompt, "cached_tokens", cached, "completion_tokens", completion);
    }

    static Map<String, Object> failure(Exception raised, int status, String kind) {
        Map<String, Object> failure = new LinkedHashMap<>();
        failure.put("type", raised.getClass().getSimpleName());
        failure.put("status", status);
        failure.put("kind", kind);
        failure.put("message", String.valueOf(raised.getMessage()));
        return failure;
    }

    /** Runs the scenarios; `failure` says what an error of the SDK is. */
    static void all(Map<String, Scenario> scenarios, Function<Exception, Map<String, Object>> failure) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (Map.Entry<String, Scenario> one : scenarios.entrySet()) {
            Map<String, Object> told = new LinkedHashMap<>();
            told.put("scenario", one.getKey());
            try {
                one.getValue().run(environment("MODELS") + one.getKey(), told);
            } catch (Exception raised) {
                told.put("error", failure.apply(raised));
            }
            out.println(new ObjectMapper().writeValueAsString(told));
        }
        System.exit(0); // the HTTP clients' threads would hold the process for a minute
    }
}
