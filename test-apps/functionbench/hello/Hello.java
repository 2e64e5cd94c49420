// The greeting of functions/hello.py in Java, answered as frame.py answers.
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.Locale;

public class Hello {
    private static long served;

    static String handle() {
        return "hello, world";
    }

    private static void reply(HttpExchange exchange, int status, String text) throws IOException {
        byte[] body = text.getBytes(StandardCharsets.UTF_8);
        exchange.getResponseHeaders().set("Connection", "close");
        exchange.sendResponseHeaders(status, body.length);
        exchange.getResponseBody().write(body);
        exchange.close();
    }

    private static void answer(HttpExchange exchange) throws IOException {
        String path = exchange.getRequestURI().getPath();
        String query = exchange.getRequestURI().getQuery();
        if (!path.equals("/")) {
            reply(exchange, 404, path + ": there is only /\n");
            return;
        }
        if (query != null && !query.isEmpty()) {
            reply(exchange, 400, query.split("[=&]")[0] + ": no such parameter; there are none\n");
            return;
        }
        try {
            long began = System.nanoTime();
            String result = handle();
            double seconds = (System.nanoTime() - began) / 1e9;
            served++;
            byte[] sum = MessageDigest.getInstance("SHA-256").digest(result.getBytes(StandardCharsets.UTF_8));
            reply(exchange, 200, String.format(Locale.ROOT,
                "{\"function\": \"hello\", \"parameters\": {}, \"digest\": \"%s\", \"seconds\": %.6f, \"served\": %d}\n",
                HexFormat.of().formatHex(sum), seconds, served));
        } catch (java.security.NoSuchAlgorithmException error) {
            reply(exchange, 500, error + "\n");
        }
    }

    public static void main(String[] arguments) throws IOException {
        int port = Integer.parseInt(System.getenv().getOrDefault("PORT", "8080"));
        HttpServer server = HttpServer.create(new InetSocketAddress(port), 64);
        server.createContext("/", Hello::answer);
        server.start();
    }
}
