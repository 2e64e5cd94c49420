package rows;

import java.util.List;
import java.util.stream.IntStream;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.RestController;

/** Rows by Spring Boot on Tomcat. */
@SpringBootApplication
@RestController
public class Application {
    private final List<String> rows = IntStream.range(0, 20000).mapToObj(n -> "row " + n).toList();

    @GetMapping("/row/{n}")
    String row(@PathVariable("n") int n) {
        return rows.get(n);
    }

    public static void main(String[] arguments) {
        SpringApplication.run(Application.class, arguments);
    }
}
