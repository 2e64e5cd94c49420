import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.StandardWatchEventKinds;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.LongStream;

/** What Java programs do with threads, memory, files, processes and sockets; prints only what is the same each time. */
class Jobs {
    /** Trees that live for a while, so that collectors move what is old, too. */
    static Object[] tree(int depth) {
        return depth == 0 ? new Object[0] : new Object[] {tree(depth - 1), tree(depth - 1)};
    }

    static long leaves(Object[] tree) {
        return tree.length == 0 ? 1 : leaves((Object[]) tree[0]) + leaves((Object[]) tree[1]);
    }

    static long collector() throws Exception {
        var pool = Executors.newFixedThreadPool(8);
        List<Future<Long>> sums = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            sums.add(pool.submit(() -> {
                Object[] old = tree(14);
                long sum = 0;
                for (int n = 0; n < 40; n++) sum += leaves(tree(12));
                return sum + leaves(old);
            }));
        }
        long sum = 0;
        for (var s : sums) sum += s.get();
        pool.shutdown();
        return sum;
    }

    static long threads() throws Exception {
        Map<Integer, Integer> counts = new ConcurrentHashMap<>();
        List<Thread> started = new ArrayList<>();
        for (int i = 0; i < 64; i++) {
            Thread t = new Thread(() -> {
                for (int n = 0; n < 2000; n++) counts.merge(n % 10, 1, Integer::sum);
            });
            t.start();
            started.add(t);
        }
        for (Thread t : started) t.join();
        return counts.values().stream().mapToLong(n -> n).sum();
    }

    static String mapped(Path scratch) throws IOException {
        try (var channel = FileChannel.open(scratch.resolve("mapped"), StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            var memory = channel.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 20);
            for (int n = 0; n < 1 << 20; n += 8) memory.putLong(n, n);
            memory.force();
            var read = ByteBuffer.allocate(8);
            channel.read(read, 4096 * 17);
            return String.valueOf(read.getLong(0));
        }
    }

    static String sockets(Path scratch) throws Exception {
        var address = UnixDomainSocketAddress.of(scratch.resolve("socket"));
        try (var server = ServerSocketChannel.open(StandardProtocolFamily.UNIX)) {
            server.bind(address);
            Thread echo = new Thread(() -> {
                try (var c = server.accept()) {
                    var buffer = ByteBuffer.allocate(100);
                    while (c.read(buffer) >= 0) {
                        buffer.flip();
                        while (buffer.hasRemaining()) c.write(buffer);
                        buffer.clear();
                    }
                } catch (IOException error) {
                    throw new RuntimeException(error);
                }
            });
            echo.start();
            try (var c = SocketChannel.open(address)) {
                c.write(ByteBuffer.wrap("hello over a socket".getBytes()));
                c.shutdownOutput();
                var buffer = ByteBuffer.allocate(100);
                while (c.read(buffer) >= 0) { }
                echo.join();
                return new String(buffer.array(), 0, buffer.position());
            }
        }
    }

    static String watched(Path scratch) throws Exception {
        try (var watcher = scratch.getFileSystem().newWatchService()) {
            scratch.register(watcher, StandardWatchEventKinds.ENTRY_CREATE);
            Files.writeString(scratch.resolve("watched"), "x");
            return watcher.take().pollEvents().get(0).context().toString();
        }
    }

    public static void main(String[] arguments) throws Exception {
        Path scratch = Files.createTempDirectory("jobs");
        System.out.println("collector " + collector());
        System.out.println("threads " + threads());
        System.out.println("parallel " + LongStream.range(0, 2_000_000).parallel().map(n -> n * n % 1000).sum());
        System.out.println("mapped " + mapped(scratch));
        System.out.println("sockets " + sockets(scratch));
        System.out.println("watched " + watched(scratch));
        Process child = new ProcessBuilder("sh", "-c", "seq 1 10 | tac | tr '\\n' ' '").start();
        System.out.println("process " + new String(child.getInputStream().readAllBytes()) + child.waitFor());
        // Deep recursion meets the guard pages, which the virtual machine protects and unprotects.
        try {
            System.out.println(deep(1));
        } catch (StackOverflowError error) {
            System.out.println("stack overflow caught");
        }
        String nothing = arguments.length > 100 ? "x" : null;
        try {
            System.out.println(nothing.length());
        } catch (NullPointerException error) {
            System.out.println("null caught");
        }
    }

    static long deep(long n) {
        return deep(n + 1) + n;
    }
}
