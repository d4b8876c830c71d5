# For the installation of llama-cpp-python, which compiles llama.cpp: leaves out the library for llama.cpp's own programs.
# edge-spec does not load it, and what it loads is the same without, byte for byte. CMake reads this file right after
# the line `project("llama.cpp")`, where this setting comes before the one that llama-cpp-python insists on; the README
# says how.
set(LLAMA_BUILD_COMMON OFF)
