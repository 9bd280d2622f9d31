package interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;

/**
 * One JVM that drives the official clients for a whole test run, because a JVM is dear to start.
 *
 * <p>Each line on standard input is a request {@code {"op": NAME, "arguments": {...}}}; each line on standard output is
 * its answer, {@code {"result": ...}} or {@code {"error": {"type": CLASS, "code": N, "text": MESSAGE}}}. Requests run
 * one after the other; consumers that a request has opened go on in the background. The end of input ends the JVM.
 * Nothing is judged here: the tests in Python compare what comes back.
 */
public final class Driver {
    private final Map<String, Operation> operations = new TreeMap<>();
    private final Handles handles = new Handles();

    private Driver() {
        new Admins().register(operations);
        new Producers(handles).register(operations);
        new Transactions(handles).register(operations);
        new PushConsumers(handles).register(operations);
        new PopCalls(handles).register(operations);
        new PullConsumers(handles).register(operations);
        new LiteConsumers(handles).register(operations);
        new Requesters(handles).register(operations);
        new Dumps(handles).register(operations);
        new Filters().register(operations);
        new Allocations().register(operations);
        operations.put("close", arguments -> {
            handles.close(arguments.getIntValue("handle"));
            return true;
        });
        operations.put("release", arguments -> {
            handles.release(arguments.getIntValue("handle"));
            return true;
        });
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // what the libraries print must not mix with the answers
        LoggerFactory.getLogger("interop"); // logback reports its start on System.out
        Driver driver = new Driver();
        driver.serve(answers);
        driver.handles.awaitReleased();
        System.exit(0);
    }

    private void serve(PrintStream answers) throws IOException {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            byte[] answer = JSON.toJSONBytes(answer(JSON.parseObject(line)), JSONWriter.Feature.WriteNulls);
            answers.write(answer, 0, answer.length);
            answers.write('\n');
            answers.flush();
        }
    }

    private Map<String, Object> answer(JSONObject request) {
        try {
            Operation operation = operations.get(request.getString("op"));
            if (operation == null) {
                throw new IllegalArgumentException("no operation " + request.getString("op"));
            }
            return Map.of("result", operation.run(request.getJSONObject("arguments")));
        } catch (Exception failure) {
            failure.printStackTrace();
            return Map.of("error", Failures.describe(failure));
        }
    }
}
