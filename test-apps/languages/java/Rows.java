import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;

/** Rows by the JDK's own HTTP server: a pool of threads, 1 MiB of garbage for each request, a timer. */
class Rows {
    public static void main(String[] arguments) throws Exception {
        String[] rows = IntStream.range(0, 20000).mapToObj(n -> "row " + n).toArray(String[]::new);
        AtomicLong ticks = new AtomicLong();
        Executors.newScheduledThreadPool(2).scheduleAtFixedRate(ticks::incrementAndGet, 1, 1, TimeUnit.SECONDS);
        HttpServer server = HttpServer.create(new InetSocketAddress("0.0.0.0", 8080), 0);
        server.createContext("/row/", exchange -> {
            byte[][] garbage = new byte[256][];
            IntStream.range(0, garbage.length).parallel().forEach(n -> garbage[n] = new byte[4096]);
            byte[] body = rows[Integer.parseInt(exchange.getRequestURI().getPath().substring(5))].getBytes();
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.start();
    }
}
