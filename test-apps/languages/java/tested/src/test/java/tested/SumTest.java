package tested;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class SumTest {
    @ParameterizedTest
    @CsvSource({"0, 0", "1, 0", "10, 285", "1000, 332833500"})
    void sums(int count, int sum) {
        assertEquals(sum, Sum.squares(count));
    }
}
