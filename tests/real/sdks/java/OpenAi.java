import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.core.JsonValue;
import com.openai.core.http.StreamResponse;
import com.openai.errors.OpenAIServiceException;
import com.openai.helpers.ChatCompletionAccumulator;
import com.openai.helpers.ResponseAccumulator;
import com.openai.models.FunctionDefinition;
import com.openai.models.FunctionParameters;
import com.openai.models.chat.completions.ChatCompletion;
import com.openai.models.chat.completions.ChatCompletionChunk;
import com.openai.models.chat.completions.ChatCompletionCreateParams;
import com.openai.models.chat.completions.ChatCompletionFunctionTool;
import com.openai.models.chat.completions.ChatCompletionStreamOptions;
import com.openai.models.embeddings.CreateEmbeddingResponse;
import com.openai.models.embeddings.EmbeddingCreateParams;
import com.openai.models.responses.FunctionTool;
import com.openai.models.responses.Response;
import com.openai.models.responses.ResponseCreateParams;
import com.openai.models.responses.ResponseStreamEvent;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** OpenAI's SDK before the proxy. */
public final class OpenAi {
    private static final Map<String, Object> BY_CM = Map.of("by_cm", Map.of("type", "integer"));
    private static final OpenAIClient CLIENT = client("KEY");

    private static OpenAIClient client(String key) {
        return OpenAIOkHttpClient.builder()
                .baseUrl(Report.environment("TOKENWEIR_URL") + "/v1")
                .apiKey(Report.environment(key))
                .maxRetries(0)
                .timeout(Duration.ofSeconds(20))
                .build();
    }

    private static ChatCompletionCreateParams.Builder asked(String model) {
        return ChatCompletionCreateParams.builder().model(model).addUserMessage(Report.QUESTION);
    }

    private static void take(Map<String, Object> told, ChatCompletion answer) {
        ChatCompletion.Choice choice = answer.choices().get(0);
        StringBuilder arguments = new StringBuilder();
        choice.message().toolCalls().ifPresent(
                calls -> calls.forEach(call -> arguments.append(call.asFunction().function().arguments())));
        told.put("text", choice.message().content().orElse(""));
        told.put("arguments", arguments.toString());
        told.put("finish", choice.finishReason().asString());
        answer.usage().ifPresent(used -> told.put("usage", Report.usage(
                used.promptTokens(),
                used.promptTokensDetails().flatMap(details -> details.cachedTokens()).orElse(0L),
                used.completionTokens())));
    }

    private static void plain(OpenAIClient client, String model, Map<String, Object> told) {
        take(told, client.chat().completions().create(asked(model).build()));
    }

    private static void streamed(ChatCompletionCreateParams.Builder params, Map<String, Object> told) {
        ChatCompletionAccumulator answer = ChatCompletionAccumulator.create();
        try (StreamResponse<ChatCompletionChunk> stream = CLIENT.chat().completions().createStreaming(params.build())) {
            stream.stream().forEach(answer::accumulate);
        }
        take(told, answer.chatCompletion());
    }

    private static ChatCompletionCreateParams.Builder withUsage(ChatCompletionCreateParams.Builder params) {
        return params.streamOptions(ChatCompletionStreamOptions.builder().includeUsage(true).build());
    }

    private static void tools(String model, Map<String, Object> told) {
        FunctionParameters parameters = FunctionParameters.builder()
                .putAdditionalProperty("type", JsonValue.from("object"))
                .putAdditionalProperty("properties", JsonValue.from(BY_CM))
                .build();
        FunctionDefinition gate = FunctionDefinition.builder().name("open_gate").parameters(parameters).build();
        streamed(withUsage(asked(model)).addTool(ChatCompletionFunctionTool.builder().function(gate).build()), told);
    }

    private static void leave(String model, Map<String, Object> told) {
        StringBuilder text = new StringBuilder();
        try (StreamResponse<ChatCompletionChunk> stream =
                CLIENT.chat().completions().createStreaming(asked(model).build())) {
            Iterator<ChatCompletionChunk> chunks = stream.stream().iterator();
            for (int read = 0; read < Report.READ_TOKENS && chunks.hasNext(); ) {
                Optional<String> part = chunks.next().choices().get(0).delta().content();
                if (part.isPresent() && !part.get().isEmpty()) {
                    text.append(part.get());
                    read++;
                }
            }
        }
        told.put("text", text.toString());
    }

    private static void responded(Map<String, Object> told, Response answer) {
        StringBuilder text = new StringBuilder();
        StringBuilder arguments = new StringBuilder();
        answer.output().forEach(item -> {
            item.message().ifPresent(message -> message.content().forEach(
                    part -> part.outputText().ifPresent(one -> text.append(one.text()))));
            item.functionCall().ifPresent(call -> arguments.append(call.arguments()));
        });
        told.put("text", text.toString());
        told.put("arguments", arguments.toString());
        answer.status().ifPresent(status -> told.put("finish", status.asString()));
        answer.usage().ifPresent(used -> told.put("usage", Report.usage(
                used.inputTokens(), used.inputTokensDetails().cachedTokens(), used.outputTokens())));
    }

    private static ResponseCreateParams.Builder responseAsked(String model) {
        return ResponseCreateParams.builder().model(model).input(Report.QUESTION);
    }

    private static void respondStreamed(ResponseCreateParams.Builder params, Map<String, Object> told) {
        ResponseAccumulator answer = ResponseAccumulator.create();
        try (StreamResponse<ResponseStreamEvent> stream = CLIENT.responses().createStreaming(params.build())) {
            stream.stream().forEach(answer::accumulate);
        }
        responded(told, answer.response());
    }

    private static void respondTools(String model, Map<String, Object> told) {
        FunctionTool.Parameters parameters = FunctionTool.Parameters.builder()
                .putAdditionalProperty("type", JsonValue.from("object"))
                .putAdditionalProperty("properties", JsonValue.from(BY_CM))
                .build();
        FunctionTool gate = FunctionTool.builder().name("open_gate").parameters(parameters).strict(false).build();
        respondStreamed(responseAsked(model).addTool(gate), told);
    }

    private static void embed(String model, Map<String, Object> told) {
        CreateEmbeddingResponse made =
                CLIENT.embeddings().create(EmbeddingCreateParams.builder().model(model).input(Report.QUESTION).build());
        told.put("vector", made.data().get(0).embedding());
        told.put("usage", Report.usage(made.usage().promptTokens(), 0, 0));
    }

    private static void models(Map<String, Object> told) {
        List<String> names = new ArrayList<>();
        CLIENT.models().list().autoPager().forEach(model -> names.add(model.id()));
        told.put("models", names);
    }

    private static Map<String, Object> failure(Exception raised) {
        if (raised instanceof OpenAIServiceException refused) {
            return Report.failure(refused, refused.statusCode(), refused.code().orElse(""));
        }
        return Report.failure(raised, 0, "");
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Report.Scenario> scenarios = new LinkedHashMap<>();
        scenarios.put("plain", (model, told) -> plain(CLIENT, model, told));
        scenarios.put("stream", (model, told) -> streamed(asked(model), told));
        scenarios.put("stream_usage", (model, told) -> streamed(withUsage(asked(model)), told));
        scenarios.put("tools", OpenAi::tools);
        scenarios.put("leave", OpenAi::leave);
        scenarios.put("broken", (model, told) -> streamed(asked(model), told));
        scenarios.put("responses", (model, told) ->
                responded(told, CLIENT.responses().create(responseAsked(model).build())));
        scenarios.put("responses_stream", (model, told) -> respondStreamed(responseAsked(model), told));
        scenarios.put("responses_tools", OpenAi::respondTools);
        scenarios.put("embeddings", OpenAi::embed);
        scenarios.put("models", (model, told) -> models(told));
        scenarios.put("unknown_key", (model, told) -> plain(client("KEY_UNKNOWN"), model, told));
        scenarios.put("spent", (model, told) -> plain(client("KEY_SPENT"), model, told));
        scenarios.put("limited", (model, told) -> {
            plain(client("KEY_LIMITED"), model, told);
            plain(client("KEY_LIMITED"), model, new LinkedHashMap<>());
        });
        Report.all(scenarios, OpenAi::failure);
    }
}
