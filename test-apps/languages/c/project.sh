# Writes a project of 40 files that depend on each other's headers, makes it by many jobs, and runs it.
set -e
mkdir "$1" && cd "$1"
for n in $(seq 1 40); do
    printf '#include <stdio.h>\n#include <string>\n#include <vector>\n#include "all.h"\nint part%d(int n) { std::vector<std::string> v(n, "x"); return v.size() + %d; }\n' "$n" "$n" >part$n.cc
done
seq 1 40 | sed 's/.*/int part&(int);/' >all.h
{
    cat <<'END'
#include <atomic>
#include <stdio.h>
#include <thread>
#include "all.h"
int main()
{
	std::atomic<int> sum{0};
	std::thread other([&] { sum += 1000; });
END
    seq 1 40 | sed 's/.*/\tsum += part&(&);/'
    cat <<'END'
	other.join();
	try {
		throw 7;
	} catch (int n) {
		sum += n;
	}
	printf("sum %d\n", (int)sum);
}
END
} >main.cc
cat >Makefile <<'END'
OBJECTS = main.o $(patsubst %.cc,%.o,$(wildcard part*.cc))
program: $(OBJECTS)
	@$(CXX) -pthread -o $@ $^
%.o: %.cc all.h
	@$(CXX) -O1 -c -o $@ $<
END
make -j8
./program
touch part7.cc
make -j8 -n | grep -c part7
