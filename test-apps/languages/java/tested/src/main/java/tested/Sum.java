package tested;

import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;

/** Sums of squares, each square by a task of the common pool. */
public class Sum {
    public static int squares(int count) {
        return IntStream.range(0, count).mapToObj(n -> CompletableFuture.supplyAsync(() -> n * n)).toList().stream()
            .mapToInt(CompletableFuture::join).sum();
    }
}
