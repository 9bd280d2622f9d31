package org.apache.iceberg.rest;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Executors;
import org.apache.iceberg.Files;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.HTTPRequest.HTTPMethod;
import org.apache.iceberg.rest.RESTCatalogAdapter.Route;
import org.apache.iceberg.rest.responses.ErrorResponse;
import org.apache.iceberg.util.Pair;

/**
 * Iceberg's REST catalog on a free port, which is the first line of the output. Its argument is the warehouse. It ends
 * with its standard input. It is in Iceberg's package because the routes of its adapter are not public.
 */
public final class RestCatalogServer {
    private final RESTCatalogAdapter adapter;

    private RestCatalogServer(RESTCatalogAdapter adapter) {
        this.adapter = adapter;
    }

    public static void main(String[] arguments) throws Exception {
        JdbcCatalog catalog = new JdbcCatalog(properties -> new LocalFiles(), null, true);
        catalog.initialize("rest", Map.of(
            "uri", "jdbc:h2:mem:" + UUID.randomUUID() + ";DB_CLOSE_DELAY=-1",
            "jdbc.schema-version", "V1",
            "warehouse", arguments[0]));
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/", new RestCatalogServer(new RESTCatalogAdapter(catalog))::answer);
        server.setExecutor(Executors.newCachedThreadPool());
        server.start();
        System.out.println(server.getAddress().getPort());
        System.in.read();
        System.exit(0);
    }

    private void answer(HttpExchange exchange) throws IOException {
        try (exchange) {
            HTTPMethod method = HTTPMethod.valueOf(exchange.getRequestMethod());
            String path = exchange.getRequestURI().getRawPath().substring(1);
            Pair<Route, Map<String, String>> route = Route.from(method, path);
            byte[] body = exchange.getRequestBody().readAllBytes();
            Object request = body.length == 0 || route.first().requestClass() == null
                ? null
                : RESTObjectMapper.mapper().readValue(body, route.first().requestClass());
            ErrorResponse[] error = new ErrorResponse[1];
            RESTResponse answer = null;
            try {
                answer = adapter.execute(
                    ImmutableHTTPRequest.builder().method(method).path(path).body(request)
                        .baseUri(java.net.URI.create("http://localhost"))
                        .queryParameters(query(exchange.getRequestURI().getRawQuery())).build(),
                    route.first().responseClass(), found -> error[0] = found, headers -> { });
            } catch (RuntimeException failure) {
                if (error[0] == null) {
                    throw failure;
                }
            }
            byte[] text = answer == null && error[0] == null
                ? new byte[0]
                : RESTObjectMapper.mapper().writeValueAsBytes(error[0] == null ? answer : error[0]);
            int status = error[0] != null ? error[0].code() : answer == null ? 204 : 200;
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            boolean isBare = text.length == 0 || method == HTTPMethod.HEAD;
            exchange.sendResponseHeaders(status, isBare ? -1 : text.length);
            if (!isBare) {
                exchange.getResponseBody().write(text);
            }
        } catch (RuntimeException failure) {
            failure.printStackTrace();
            throw failure;
        }
    }

    private static Map<String, String> query(String text) {
        Map<String, String> found = new HashMap<>();
        for (String pair : text == null ? new String[0] : text.split("&")) {
            String[] both = pair.split("=", 2);
            found.put(both[0], URLDecoder.decode(both.length == 2 ? both[1] : "", StandardCharsets.UTF_8));
        }
        return found;
    }

    private static final class LocalFiles implements FileIO {
        @Override
        public InputFile newInputFile(String path) {
            return Files.localInput(path.replaceFirst("^file://", ""));
        }

        @Override
        public OutputFile newOutputFile(String path) {
            return Files.localOutput(path.replaceFirst("^file://", ""));
        }

        @Override
        public void deleteFile(String path) {
            new java.io.File(path.replaceFirst("^file://", "")).delete();
        }
    }
}
