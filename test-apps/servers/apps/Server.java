import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import java.util.stream.IntStream;

/** The JDK's own HTTP server with a pool of threads, run from its source. */
class Server {
    public static void main(String[] arguments) throws Exception {
        String[] rows = IntStream.range(0, 20000).mapToObj(n -> "row " + n).toArray(String[]::new);
        HttpServer server = HttpServer.create(new InetSocketAddress("0.0.0.0", 8080), 0);
        server.createContext("/", exchange -> {
            String path = exchange.getRequestURI().getPath();
            String answer = path.startsWith("/row/") ? rows[Integer.parseInt(path.substring(5))] : "hello from java\n";
            byte[] body = answer.getBytes();
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
    }
}
