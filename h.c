#include <stdio.h>
int main(){puts("hi");}
