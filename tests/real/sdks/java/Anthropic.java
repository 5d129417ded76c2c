import com.anthropic.client.AnthropicClient;
import com.anthropic.client.okhttp.AnthropicOkHttpClient;
import com.anthropic.core.JsonValue;
import com.anthropic.core.http.StreamResponse;
import com.anthropic.errors.AnthropicServiceException;
import com.anthropic.helpers.MessageAccumulator;
import com.anthropic.models.messages.Message;
import com.anthropic.models.messages.MessageCountTokensParams;
import com.anthropic.models.messages.MessageCreateParams;
import com.anthropic.models.messages.RawMessageStreamEvent;
import com.anthropic.models.messages.Tool;
import com.anthropic.models.messages.Usage;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** Anthropic's SDK before the proxy. */
public final class Anthropic {
    private static final AnthropicClient CLIENT = client("KEY");

    private static AnthropicClient client(String key) {
        return AnthropicOkHttpClient.builder()
                .baseUrl(Report.environment("TOKENWEIR_URL"))
                .apiKey(Report.environment(key))
                .maxRetries(0)
                .timeout(Duration.ofSeconds(20))
                .build();
    }

    private static MessageCreateParams.Builder asked(String model) {
        return MessageCreateParams.builder().model(model).maxTokens(600).addUserMessage(Report.QUESTION);
    }

    private static void take(Map<String, Object> told, Message answer) throws Exception {
        StringBuilder text = new StringBuilder();
        List<JsonValue> calls = new ArrayList<>();
        answer.content().forEach(block -> {
            block.text().ifPresent(one -> text.append(one.text()));
            block.toolUse().ifPresent(call -> calls.add(call._input()));
        });
        told.put("text", text.toString());
        told.put("arguments", calls.isEmpty() ? "" : new ObjectMapper().writeValueAsString(calls.get(0).convert(Map.class)));
        told.put("finish", answer.stopReason().orElseThrow().asString());
        Usage used = answer.usage();
        long cached = used.cacheReadInputTokens().orElse(0L);
        long written = used.cacheCreationInputTokens().orElse(0L);
        told.put("usage", Report.usage(used.inputTokens() + cached + written, cached, used.outputTokens()));
    }

    private static void plain(AnthropicClient client, String model, Map<String, Object> told) throws Exception {
        take(told, client.messages().create(asked(model).build()));
    }

    private static void streamed(MessageCreateParams.Builder params, Map<String, Object> told) throws Exception {
        MessageAccumulator answer = MessageAccumulator.create();
        try (StreamResponse<RawMessageStreamEvent> stream = CLIENT.messages().createStreaming(params.build())) {
            stream.stream().forEach(answer::accumulate);
        }
        take(told, answer.message());
    }

    private static void tools(String model, Map<String, Object> told) throws Exception {
        Tool.InputSchema schema = Tool.InputSchema.builder()
                .properties(JsonValue.from(Map.of("by_cm", Map.of("type", "integer"))))
                .build();
        streamed(asked(model).addTool(Tool.builder().name("open_gate").inputSchema(schema).build()), told);
    }

    private static void leave(String model, Map<String, Object> told) {
        StringBuilder text = new StringBuilder();
        try (StreamResponse<RawMessageStreamEvent> stream = CLIENT.messages().createStreaming(asked(model).build())) {
            Iterator<RawMessageStreamEvent> events = stream.stream().iterator();
            for (int read = 0; read < Report.READ_TOKENS && events.hasNext(); ) {
                Optional<String> part = events.next().contentBlockDelta()
                        .flatMap(event -> event.delta().text()).map(delta -> delta.text());
                if (part.isPresent()) {
                    text.append(part.get());
                    read++;
                }
            }
        }
        told.put("text", text.toString());
    }

    private static void count(String model, Map<String, Object> told) {
        told.put("counted", CLIENT.messages()
                .countTokens(MessageCountTokensParams.builder().model(model).addUserMessage(Report.QUESTION).build())
                .inputTokens());
    }

    private static void models(Map<String, Object> told) {
        List<String> names = new ArrayList<>();
        CLIENT.models().list().autoPager().forEach(model -> names.add(model.id()));
        told.put("models", names);
    }

    private static Map<String, Object> failure(Exception raised) {
        if (raised instanceof AnthropicServiceException refused) {
            String kind = refused.errorType().map(type -> type.asString()).orElse("");
            return Report.failure(refused, refused.statusCode(), kind);
        }
        return Report.failure(raised, 0, "");
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Report.Scenario> scenarios = new LinkedHashMap<>();
        scenarios.put("plain", (model, told) -> plain(CLIENT, model, told));
        scenarios.put("stream", (model, told) -> streamed(asked(model), told));
        scenarios.put("tools", Anthropic::tools);
        scenarios.put("leave", Anthropic::leave);
        scenarios.put("broken", (model, told) -> streamed(asked(model), told));
        scenarios.put("count_tokens", Anthropic::count);
        scenarios.put("models", (model, told) -> models(told));
        scenarios.put("unknown_key", (model, told) -> plain(client("KEY_UNKNOWN"), model, told));
        scenarios.put("spent", (model, told) -> plain(client("KEY_SPENT"), model, told));
        scenarios.put("limited", (model, told) -> {
            plain(client("KEY_LIMITED"), model, told);
            plain(client("KEY_LIMITED"), model, new LinkedHashMap<>());
        });
        Report.all(scenarios, Anthropic::failure);
    }
}
